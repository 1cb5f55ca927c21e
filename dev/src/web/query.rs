//! Query parameters, parsed as strictly as bodies: unknown and repeated ones are errors, reported
//! together.

use std::collections::BTreeMap;
use std::str::FromStr;

use postern_common::problem::{Code, Problem};

/// Parses a query string into parameters by name.
///
/// # Errors
/// Returns 400 with every name that is not in `known` or is repeated.
pub(crate) fn parse(
    text: Option<&str>,
    known: &[&str],
) -> Result<BTreeMap<String, String>, Problem> {
    let mut problem = Problem::new(Code::InvalidRequest);
    let (mut parameters, mut wrong) = (BTreeMap::new(), false);
    for (name, value) in url::form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
        if !known.contains(&name.as_ref()) {
            wrong = true;
            problem = problem.error(
                &pointer(&name),
                "unknown_field",
                "is not a known query parameter",
            );
        } else if parameters
            .insert(name.to_string(), value.into_owned())
            .is_some()
        {
            wrong = true;
            problem = problem.error(
                &pointer(&name),
                "duplicate_field",
                "is repeated in the query",
            );
        }
    }
    if wrong { Err(problem) } else { Ok(parameters) }
}

/// Parses an integer parameter with a maximum. Returns `None` if it is absent.
///
/// # Errors
/// Returns 400 if the value is not an integer up to the maximum.
pub(crate) fn integer<T>(
    parameters: &BTreeMap<String, String>,
    name: &str,
    max: T,
) -> Result<Option<T>, Problem>
where
    T: Copy + FromStr + PartialOrd + std::fmt::Display,
{
    let Some(text) = parameters.get(name) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(integer) if integer <= max => Ok(Some(integer)),
        _ => {
            let detail = format!("must be a whole number up to {max}");
            Err(Problem::new(Code::InvalidRequest).error(&pointer(name), "out_of_range", detail))
        }
    }
}

fn pointer(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}
