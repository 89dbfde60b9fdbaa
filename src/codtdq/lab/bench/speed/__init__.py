"""Speed, memory and storage of the native engine, against what else could run the same network."""
