//! Cells of spreadsheets, which run what begins like a formula (OWASP, "CSV Injection").
//!
//! A program's option (`--machine pc`) begins with a dash as well, and stays as it is unless
//! something in it could call or fetch: those are labels, which scripts look for.

/// What is put before a cell's text so that no spreadsheet runs it: a quote, or nothing.
pub fn guard(text: &str) -> &'static str {
    let text = text.trim_start();
    let is_formula = text.starts_with(['=', '+', '-', '@', '|', '%']);
    if is_formula && !is_option(text) {
        "'"
    } else {
        ""
    }
}

fn is_option(text: &str) -> bool {
    let named = text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic());
    text.starts_with('-') && named && !text.contains(['(', '|', '!'])
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_begins_like_a_formula_is_guarded() {
        for text in ["=1+1", " \t=cmd|'/C calc'!A0", "@SUM(1)", "-1", "+1", "|x", "%1"] {
            assert_eq!(super::guard(text), "'", "{text}");
        }
        for text in ["-2+3", "-cmd|' /C calc'!A0", "--HYPERLINK(\"x\")", "-Sheet1!A1"] {
            assert_eq!(super::guard(text), "'", "{text}");
        }
        for text in ["kvm_exit", "--machine pc", "-smp 2", "--append console=ttyS0,115200"] {
            assert_eq!(super::guard(text), "", "{text}");
        }
    }
}
