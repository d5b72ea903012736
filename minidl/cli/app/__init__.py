"""The program behind train.py. The function ``train`` in train.py is the whole run; the other files hold its parts.

command line   options (the values of all flags), flags (the parser), kinds (the kinds of values that a flag takes)
objects        choices (device, policy), inputs (the data set), build (network, loss and optimizer)
what fits      fit (dry runs that try a batch and a budget), sizes (the batch and budget of the run), advice
the run        session, run_folder, interrupt, watch, outcome, files
"""
