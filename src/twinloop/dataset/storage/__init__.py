"""Write datasets to folders and object stores in complete commits, and exchange them with the Hugging Face Hub."""
