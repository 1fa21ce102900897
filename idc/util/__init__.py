"""What every room uses: atomic files, cores, units, progress, logs, redaction."""
