"""Published weights to and from our parameter tree."""
