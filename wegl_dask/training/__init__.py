"""Training on the embeddings of a run: models and their grids, the paper's protocols, and what is kept of them."""
