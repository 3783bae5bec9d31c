"""What a running campaign tells others, and what others ask of it, through files in its folder."""
