//! Weights in header fields of content negotiation (RFC 9110 section 12.4.2).

/// A weight in thousandths.
pub(crate) type Weight = u16;

/// The weight of a member without one.
pub(crate) const MAX_WEIGHT: Weight = 1000;

/// Parses `q=0.5`, with at most three decimals; `None` if it is malformed.
pub(crate) fn parse_weight(parameter: &str) -> Option<Weight> {
    let parameter = parameter.trim_ascii();
    let value = parameter
        .strip_prefix("q=")
        .or_else(|| parameter.strip_prefix("Q="))?;
    let (whole, decimals) = value.split_once('.').unwrap_or((value, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths: Weight = format!("{decimals:0<3}").parse().ok()?;
    match whole {
        "0" => Some(thousandths),
        "1" if thousandths == 0 => Some(MAX_WEIGHT),
        _ => None,
    }
}
