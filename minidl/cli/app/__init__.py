"""The program behind train.py, which ``train`` tells from top to bottom, and what it is made of.

    command line   options (what it says), flags (how it is read), kinds (what the values may be)
    what is made   choices (device, policy), inputs (data), build (network and optimizer)
    what fits      fit (trials on twins), sizes (batch and budget), advice
    the run        session, run_folder, interrupt, watch, outcome, files
"""
