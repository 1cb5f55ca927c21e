//! `standalone.env`: every address and variable that a script or an SDK needs, in shell syntax.

use std::path::Path;

use postern_common::config::Env;
use postern_common::exit::Exit;

use crate::folder::{read_if_there, write_private};

/// The name of the file in the data folder.
pub(crate) const FILE: &str = "standalone.env";

/// Variables in the order in which they are written; a name stands once, and the first value wins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment(Vec<(String, String)>);

// === impl Environment ===

impl Environment {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        if self.get(&name).is_none() {
            self.0.push((name, value));
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// As a process would see it.
    pub(crate) fn to_env(&self) -> Env {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    /// Writes the file, for its owner alone.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Exit> {
        let mut text =
            String::from("# Written by postern at every start. Load it with:  . ./standalone.env\n");
        for (name, value) in &self.0 {
            text.push_str(&format!("export {name}='{}'\n", value.replace('\'', r"'\''")));
        }
        write_private(&folder.join(FILE), text.as_bytes())
    }

    /// Reads what [`Environment::write`] wrote.
    pub(crate) fn read(folder: &Path) -> Result<Self, Exit> {
        let path = folder.join(FILE);
        let bytes = read_if_there(&path)?.ok_or_else(|| {
            Exit::unavailable(format!(
                "{}: is not there; start postern with this --data-dir first",
                path.display()
            ))
        })?;
        let mut environment = Self::default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            let pair = line.strip_prefix("export ").and_then(|line| line.split_once('='));
            if let Some((name, value)) = pair {
                let value = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
                environment.add(name, value.unwrap_or_default().replace(r"'\''", "'"));
            }
        }
        Ok(environment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_and_we_read_the_same() {
        let folder = tempfile::tempdir().expect("folder");
        let mut environment = Environment::default();
        let odd = "a'b\"c $HOME `x` \\ =";
        environment.add("ODD", odd);
        environment.add("ODD", "second");
        environment.write(folder.path()).expect("written");
        let again = Environment::read(folder.path()).expect("read");
        assert_eq!(again.get("ODD"), Some(odd));
        let script = format!(". {}; printf %s \"$ODD\"", folder.path().join(FILE).display());
        let said = std::process::Command::new("sh").args(["-c", &script]).output().expect("sh");
        assert_eq!(String::from_utf8_lossy(&said.stdout), odd);
    }

    #[test]
    fn a_folder_that_never_ran_says_so() {
        let folder = tempfile::tempdir().expect("folder");
        let exit = Environment::read(folder.path()).expect_err("nothing there");
        assert_eq!(exit.status(), 69);
        assert!(exit.message().contains("start postern"), "{exit}");
    }
}
