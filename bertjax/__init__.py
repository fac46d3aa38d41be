"""BERT-family research in JAX: pretraining, fine-tuning, translation and summarization."""
