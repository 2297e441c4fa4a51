# A program and its two parts, no tests: it finds them beside it when it is run.
collect_ignore = ["fuzz_readers.py", "inputs.py", "changes.py"]
