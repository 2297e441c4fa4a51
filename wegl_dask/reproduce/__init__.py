"""The paper's tables, computed anew and laid beside the paper's numbers."""
