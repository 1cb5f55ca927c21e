//! Query parameters, read as strictly as bodies: unknown and repeated ones are refused, all at
//! once.

use std::collections::BTreeMap;
use std::str::FromStr;

use postern_common::problem::{Code, Problem};

/// The parameters by name.
///
/// # Errors
/// 400 with every name that is not `known` or stands twice.
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
                "stands twice in the query",
            );
        }
    }
    if wrong { Err(problem) } else { Ok(parameters) }
}

/// A whole number up to `most`, if the parameter is there.
///
/// # Errors
/// 400 when it is something else.
pub(crate) fn number<T>(
    parameters: &BTreeMap<String, String>,
    name: &str,
    most: T,
) -> Result<Option<T>, Problem>
where
    T: Copy + FromStr + PartialOrd + std::fmt::Display,
{
    let Some(text) = parameters.get(name) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(number) if number <= most => Ok(Some(number)),
        _ => {
            let detail = format!("must be a whole number up to {most}");
            Err(Problem::new(Code::InvalidRequest).error(&pointer(name), "out_of_range", detail))
        }
    }
}

fn pointer(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}
