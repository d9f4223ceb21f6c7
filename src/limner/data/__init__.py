"""Collections of pictures and sentences, and the batches made from them."""
