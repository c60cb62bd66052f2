"""Videos and pictures of datasets: encoded, decoded, kept beside."""
