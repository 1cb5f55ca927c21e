//! Configuration: one TOML file per process, and environment variables for secrets and overrides.
//!
//! Input: the path or text of a file, and the environment. Output: the value that the reader of a
//! process builds, or all mistakes with file, line and key. Depends on `decode`, `exit` and
//! `secret`.

mod include;
mod listener;
mod source;

use std::collections::BTreeMap;
use std::path::Path;

pub use self::include::ConfigFiles;
pub use self::listener::{AdminListener, read_admin, read_admin_with, read_listen};
pub use self::source::{LocatedMistake, SourceText, SourceTexts};
use crate::Secret;
use crate::decode::{self, Mistakes, Object};
use crate::exit::Exit;

/// The environment variables of the process, or variables that a test sets.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: BTreeMap<String, String>,
    assumed: BTreeMap<String, String>,
}

// === impl Env ===

impl Env {
    /// Returns the variables of the process. Variables that are not UTF-8 are ignored.
    #[must_use]
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// Adds fallback values for required settings that neither the environment nor the file sets.
    /// Used to check a configuration file without its deployment's secrets.
    #[must_use]
    pub fn assuming(mut self, values: &[(&str, &str)]) -> Self {
        self.assumed = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self
    }

    /// Returns the fallback value of a variable.
    #[must_use]
    pub fn assumed(&self, name: &str) -> Option<&str> {
        self.assumed.get(name).map(String::as_str)
    }

    /// Returns a variable that is set and not empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns a variable that is set and not empty, as a secret.
    #[must_use]
    pub fn secret(&self, name: &str) -> Option<Secret> {
        self.get(name).map(Secret::from)
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Env {
    fn from(pairs: [(&str, &str); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<A: Into<String>, B: Into<String>> FromIterator<(A, B)> for Env {
    fn from_iter<I: IntoIterator<Item = (A, B)>>(pairs: I) -> Self {
        let variables = pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Self {
            variables,
            assumed: BTreeMap::new(),
        }
    }
}

/// Reads a secret from the environment variable named by a `…_env` key. The file contains no
/// secrets.
pub fn secret(object: &Object<'_>, env: &Env, key: &'static str) -> Option<Secret> {
    object.required(key, |field| {
        let variable = field.text(1..=128)?;
        env.secret(&variable).or_else(|| {
            field.fail(
                "missing_variable",
                format!("the environment has no {variable}"),
            )
        })
    })
}

/// Reads and parses a configuration file.
///
/// # Errors
/// Exit status 64, with one line per mistake: file, line, key and reason.
pub fn load<T>(path: &Path, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Exit> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Exit::usage(format!("{name}: cannot read: {error}")))?;
    parse(&name, &text, read)
}

/// Parses configuration from `text`; `name` is the file name for error messages. No file is
/// included.
///
/// # Errors
/// As [`load`].
pub fn parse<T>(
    name: &str,
    text: &str,
    read: impl FnOnce(&Object<'_>) -> Option<T>,
) -> Result<T, Exit> {
    let mistakes = Mistakes::default();
    let value = decode::toml(text, &mistakes).and_then(|root| mistakes.object(&root, read));
    mistakes
        .finish(value)
        .map_err(|mistakes| Exit::usage(SourceTexts::of(name, text).describe(&mistakes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_listed_with_file_line_and_key() {
        let text = "port = 'x'\n\n[log]\nlevle = 1\n";
        let exit = parse("conf/x.toml", text, |root| {
            root.section("log", |log| {
                Some(log.optional("level", |level| level.boolean()))
            });
            root.required("port", |port| port.integer(1..=9))
        })
        .expect_err("two mistakes");
        assert_eq!(exit.status(), 64);
        assert_eq!(
            exit.message(),
            "conf/x.toml:1: port: must be an integer, not a string\n\
             conf/x.toml:4: log.levle: is not a known field; did you mean `level`?"
        );
    }

    #[test]
    fn mistake_found_after_parsing_has_the_line_of_its_value() {
        let text =
            "[[listen]]\n[listen.tls]\nkey = 'a'\n[up.\"a.b\"]\nca = 'c'\n[x]\nlist = [1,\n2]\n";
        let exit = parse("x.toml", text, |root| {
            for path in [
                "listen.0.tls.key",
                "listen.0.tls.none",
                "up.a.b.ca",
                "x.list.1",
                "y",
            ] {
                root.fail_at(path, "bad", "is bad");
            }
            for name in ["listen", "up", "x"] {
                assert!(root.has(name));
            }
            Some(())
        });
        let lines = [
            "x.toml:1: is bad",
            "x.toml:2: listen.0.tls: is bad",
            "x.toml:3: listen.0.tls.key: is bad",
            "x.toml:5: up.a.b.ca: is bad",
            "x.toml:8: x.list.1: is bad",
        ];
        assert_eq!(
            exit.expect_err("invalid configuration").message(),
            lines.join("\n")
        );
    }

    #[test]
    fn syntax_error_has_a_line() {
        let exit = parse("x.toml", "a = 1\nb = = 2\n", |_| Some(())).expect_err("syntax");
        assert!(
            exit.message().starts_with("x.toml:2: "),
            "{}",
            exit.message()
        );
    }

    #[test]
    fn duplicate_table_or_key_is_named() {
        for (text, named) in [
            (
                "[upstream.a]\nx = 1\n[upstream.a]\ny = 2\n",
                "x.toml:3: duplicate key `upstream.a`",
            ),
            ("[a]\nx = 1\nx = 2\n", "x.toml:3: duplicate key `x`"),
            ("[a]\ny.z = 1\ny.z = 2\n", "x.toml:3: duplicate key `z`"),
            ("a = { b = 1, b = 2 }\n", "x.toml:1: duplicate key `b`"),
            ("a = 1\n[[a]]\n", "x.toml:2: duplicate key `a`"),
            ("a = 1\n[a]\nb = 1\n", "x.toml:2: duplicate key `a`"),
        ] {
            let exit = parse("x.toml", text, |_| Some(())).expect_err("a duplicate");
            assert_eq!(exit.message(), named, "{text:?}");
        }
    }
}
