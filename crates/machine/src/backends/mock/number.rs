//! Numbers in a script.

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').ok_or("expected a percentage such as 1.5%")?;
    Ok(float(number)? / 100.0)
}

pub(super) fn float(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(n) if n.is_finite() && n >= 0.0 => Ok(n),
        _ => Err(format!("expected a number that is not negative, found {text:?}")),
    }
}
