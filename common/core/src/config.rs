//! Configuration: one TOML file per process, and environment variables for secrets and overrides.
//!
//! Input: the path or text of a file, and the environment. Output: the value that the reader of a
//! process builds, or all mistakes with file, line and key.

mod file;
mod listener;
mod source;

use std::collections::BTreeMap;
use std::path::Path;

pub use self::file::ConfigFile;
pub use self::listener::{AdminListener, read_admin, read_listen};
pub use self::source::{LocatedMistake, SourceText, SourceTexts};
use crate::Secret;
use crate::decode::{Field, Object};
use crate::exit::Exit;
use crate::files::read_regular_text;

const MAX_SECRET_FILE_BYTES: usize = 64 << 10;

/// The environment variables of the process, or variables that a test sets.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: BTreeMap<String, String>,
    assumed: BTreeMap<String, String>,
}

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

    /// Returns a secret: the value of the variable `NAME`, or the text of the file that `NAME_FILE`
    /// names, without the line break at its end. `None` if neither is set.
    ///
    /// # Errors
    /// Both are set, or the file has no text or cannot be read.
    pub fn secret(&self, name: &str) -> Result<Option<Secret>, String> {
        let file = format!("{name}_FILE");
        match (self.get(name), self.get(&file)) {
            (None, None) => Ok(None),
            (Some(value), None) => Ok(Some(Secret::from(value))),
            (Some(_), Some(_)) => Err(format!("{name} and {file} are both set")),
            (None, Some(path)) => match read_regular_text(Path::new(path), MAX_SECRET_FILE_BYTES) {
                Ok(text) if !text.trim().is_empty() => {
                    Ok(Some(Secret::from(text.trim_end_matches(['\r', '\n']))))
                }
                Ok(_) => Err(format!("{file}: {path} is empty")),
                Err(error) => Err(format!("{file}: cannot read {path}: {error}")),
            },
        }
    }

    /// Returns a secret as [`Env::secret`] does, which must be set.
    pub fn required_secret(&self, name: &str) -> Result<Secret, String> {
        let secret = self.secret(name)?;
        secret.ok_or_else(|| format!("the variable {name} is not set"))
    }

    /// Returns a secret as [`Env::secret`] does, and `None` after recording a mistake.
    pub fn optional_secret(&self, root: &Object<'_>, name: &str) -> Option<Option<Secret>> {
        let secret = self.secret(name);
        secret
            .map_err(|detail| root.fail("invalid_secret", detail))
            .ok()
    }

    /// Returns a secret as [`Env::optional_secret`] does, or else the value of the file: a URL may
    /// contain a password.
    #[must_use]
    pub fn secret_or(&self, root: &Object<'_>, name: &str, written: String) -> String {
        let set = self.optional_secret(root, name).flatten();
        set.map_or(written, |secret| secret.expose().to_owned())
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

/// Reads the secret ([`Env::secret`]) whose variable a `…_env` key names. The configuration file
/// contains no secrets.
pub fn secret(field: Field<'_>, env: &Env) -> Option<Secret> {
    let variable = field.typed("variable").text(1..=128)?;
    let secret = env.required_secret(&variable);
    secret.map_or_else(|detail| field.fail("invalid_secret", detail), Some)
}

/// Reads and parses a configuration file.
pub fn load<T>(path: &Path, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Exit> {
    ConfigFile::read(path)?.decode(read)
}

/// Parses configuration from `text`; `name` is the file name for error messages.
pub fn parse<T>(
    name: &str,
    text: &str,
    read: impl FnOnce(&Object<'_>) -> Option<T>,
) -> Result<T, Exit> {
    ConfigFile::with_text(Path::new(name), text.to_owned()).decode(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_in_a_variable_or_in_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("good"), " s 1\r\n").expect("written");
        std::fs::write(path("empty"), "\n").expect("written");
        for (value, file, expected) in [
            ("", "", Ok(None)),
            ("s", "", Ok(Some("s"))),
            ("", "good", Ok(Some(" s 1"))),
            ("s", "good", Err("KEY and KEY_FILE are both set")),
            ("", "empty", Err("empty is empty")),
            ("", "none", Err("KEY_FILE: cannot read ")),
            ("", ".", Err("is not a regular file")),
        ] {
            let file = Some(file).filter(|file| !file.is_empty());
            let file = file.map(path).unwrap_or_default();
            let env = Env::from([("KEY", value), ("KEY_FILE", file.as_str())]);
            let expected = expected.map(|secret| secret.map(Secret::from));
            match (env.secret("KEY"), expected) {
                (Err(detail), Err(part)) => assert!(detail.contains(part), "{detail}"),
                (read, expected) => assert_eq!(read, expected.map_err(str::to_owned), "{file}"),
            }
        }
        let missing = Env::default().required_secret("KEY");
        assert_eq!(missing, Err("the variable KEY is not set".to_owned()));
    }

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
    fn syntax_error_or_duplicate_has_a_line() {
        for (text, named) in [
            ("a = 1\nb = = 2\n", "x.toml:2: extra `=`, expected nothing"),
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
            let exit = parse("x.toml", text, |_| Some(())).expect_err("a mistake");
            assert_eq!(exit.message().lines().next(), Some(named), "{text:?}");
        }
    }
}
