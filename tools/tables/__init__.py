"""Tables of measured figures in Markdown, made from the records in records/."""
