"""The program behind train.py. ``train`` has the whole story from top to bottom; the other files are its parts.

    command line   options (its values), flags (its parser), kinds (the kinds of values)
    what is made   choices (device, policy), inputs (data), build (network and optimizer)
    what fits      fit (trials on twins), sizes (batch and budget), advice
    the run        session, run_folder, interrupt, watch, outcome, files
"""
