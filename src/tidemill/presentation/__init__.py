"""What is shown to people: reports as text, Markdown and HTML, and what web pages share."""
