//! Results to a terminal, JSON, CSV, Markdown, HTML and Perfetto.
