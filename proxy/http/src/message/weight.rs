//! Weights in header fields of content negotiation (RFC 9110 section 12.4.2).

use http::HeaderMap;
use http::header::HeaderName;

/// A weight in thousandths.
pub(crate) type Weight = u16;

/// The weight of a member without one.
const MAX_WEIGHT: Weight = 1000;

/// Returns the members of the lists in the fields `name` with their parameters before the weight, and
/// their weights. Those with a malformed weight are omitted.
pub(crate) fn weighted_members(
    headers: &HeaderMap,
    name: HeaderName,
) -> impl Iterator<Item = (&str, Weight)> {
    let values = headers.get_all(name).into_iter();
    let members = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    members.filter_map(|member| {
        let is_weight = |at: &usize| {
            let parameter = member[at + 1..].trim_ascii_start();
            parameter.starts_with("q=") || parameter.starts_with("Q=")
        };
        let mut semicolons = member.match_indices(';').map(|(at, _)| at);
        let (name, weight) = match semicolons.find(is_weight) {
            Some(at) => (&member[..at], parse_weight(&member[at + 1..])?),
            None => (member, MAX_WEIGHT),
        };
        Some((name.trim_ascii(), weight))
    })
}

/// Parses `q=0.5`, with at most three decimals; `None` if it is malformed.
fn parse_weight(parameter: &str) -> Option<Weight> {
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
