"""The default tier: one LMDB environment a folder, one writer, reads by the batch."""
