//! Query strings of requests, decoded with every mistake.

use std::collections::BTreeMap;

use url::form_urlencoded;

use postern_core::decode::{Mistake, NO_NUL};
use postern_core::exit::Exit;
use postern_core::problem::Problem;

const MAX_QUERY_BYTES: usize = 8 << 10;
const MAX_MISTAKES: usize = 20;

/// The parameters of a query string. Each name is known to the reader and occurs at most once.
#[derive(Debug, Default)]
pub struct Query {
    values: BTreeMap<String, String>,
    mistakes: Vec<Mistake>,
}

impl Query {
    /// Decodes a query string. Names that are not `known`, and repeated names, are mistakes.
    #[must_use]
    pub fn parse(text: &str, known: &[&str]) -> Self {
        let mut query = Self::default();
        if text.len() > MAX_QUERY_BYTES {
            let detail = format!("must be at most {MAX_QUERY_BYTES} bytes long");
            query.fail("", "invalid_length", detail);
            return query;
        }
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let (name, value) = (name.into_owned(), value.into_owned());
            if !known.contains(&&*name) {
                query.fail(&name, "unknown_field", "is not a known parameter");
            } else if value.contains('\0') {
                query.fail(&name, "invalid_format", NO_NUL);
            } else if query.values.insert(name.clone(), value).is_some() {
                query.fail(&name, "duplicate_field", "occurs more than once");
            }
        }
        query
    }

    /// Creates a query of the options of a command line.
    #[must_use]
    pub fn of_options<'a>(values: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Self {
        let values = values.into_iter();
        let values = values.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        let (values, mistakes) = (values.collect(), Vec::new());
        Self { values, mistakes }
    }

    /// Returns a parameter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Converts a parameter. If it cannot be converted, records a mistake with `expected`, such as
    /// `must be an RFC 3339 time`.
    pub fn read<T>(
        &mut self,
        name: &str,
        expected: &str,
        convert: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = convert(self.values.get(name)?);
        if value.is_none() {
            self.fail(name, "invalid_format", expected);
        }
        value
    }

    /// Records a mistake.
    pub fn fail(&mut self, name: &str, code: &'static str, detail: impl Into<String>) {
        if self.mistakes.len() < MAX_MISTAKES {
            let mistake = Mistake::unreadable(format!("?{name}"), 0, code, detail);
            self.mistakes.push(mistake);
        }
    }

    /// Ends the decoding.
    pub fn finish(self) -> Result<(), Problem> {
        match self.mistakes.is_empty() {
            true => Ok(()),
            false => Err(Problem::from_mistakes(self.mistakes)),
        }
    }

    /// Ends the decoding of options.
    pub fn finish_options(self) -> Result<(), Exit> {
        match self.mistakes.first() {
            Some(mistake) => {
                let name = mistake.pointer.trim_start_matches('?');
                Err(Exit::usage(format!("--{name} {}", mistake.detail)))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_of_a_query_is_reported() {
        let mut query = Query::parse("a=1&b=x&b=2&c=3&d=%41&e=x%00", &["a", "b", "d", "e"]);
        assert_eq!(query.get("a"), Some("1"));
        assert_eq!(query.get("d"), Some("A"));
        assert_eq!(query.read("a", "-", |text| text.parse().ok()), Some(1_u8));
        let none: Option<u8> = query.read("d", "must be a number", |text| text.parse().ok());
        assert_eq!(none, None);
        let problem = query.finish().expect_err("mistakes");
        let errors = problem.to_json("r")["errors"].to_string();
        for part in [
            r#"{"code":"duplicate_field","detail":"occurs more than once","pointer":"?b"}"#,
            r#""pointer":"?c""#,
            r#""detail":"must be a number","pointer":"?d""#,
            r#""detail":"must not contain a NUL character","pointer":"?e""#,
        ] {
            assert!(errors.contains(part), "{part} is missing in {errors}");
        }
        assert!(Query::parse(&"a".repeat(9000), &["a"]).finish().is_err());
        let unknown = (0..100).map(|n| format!("x{n}=")).collect::<Vec<_>>();
        assert_eq!(Query::parse(&unknown.join("&"), &[]).mistakes.len(), 20);
    }
}
