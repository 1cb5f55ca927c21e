//! The environment file `standalone.env`: addresses and variables for scripts and SDKs, in shell
//! syntax.

use std::path::Path;

use postern_core::config::Env;
use postern_core::exit::Exit;

use postern_dev::data_folder::{read_optional, write_private};

/// Name of the file in the data folder.
pub(crate) const ENVIRONMENT_FILE_NAME: &str = "standalone.env";

/// Variables in the order of the file. Names are unique; the first value of a name is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct EnvironmentFile(Vec<(String, String)>);

impl EnvironmentFile {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        if self.get(&name).is_none() {
            self.0.push((name, value));
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut known = self.0.iter().filter(|(known, _)| known == name);
        known.next().map(|(_, value)| value.as_str())
    }

    /// Returns the variables as a process environment.
    pub(crate) fn to_env(&self) -> Env {
        self.0.iter().cloned().collect()
    }

    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    /// Writes the file with mode 0600. The file does not replace existing `AWS_*` variables of the
    /// shell that loads it, because every AWS tool in that shell reads them.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Exit> {
        let mut text = String::from(
            "# Written by postern at every start. Load it with:  . ./standalone.env\n",
        );
        let is_aws = |(name, _): &&(String, String)| name.starts_with("AWS_");
        let (aws, own): (Vec<_>, Vec<_>) = self.0.iter().partition(is_aws);
        for pair in own {
            text.push_str(&export(pair));
        }
        if !aws.is_empty() {
            let known = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"].into_iter();
            let known = known.chain(aws.iter().map(|(name, _)| name.as_str()));
            let known: String = known.map(|name| format!("${{{name}:-}}")).collect();
            text.push_str(&format!(
                "# Existing AWS_* variables of this shell are kept, because every AWS tool reads them.\n\
                 # To replace them by the local ones:  POSTERN_AWS=local; . ./standalone.env\n\
                 if [ \"${{POSTERN_AWS:-}}\" = local ] || [ -z \"{known}\" ]; then\n\
                 export POSTERN_AWS='local'\n"
            ));
            for pair in aws {
                text.push_str(&export(pair));
            }
            text.push_str(&format!(
                "else\necho '{ENVIRONMENT_FILE_NAME}: existing AWS_* variables were kept; the file says how to replace them' >&2\nfi\n"
            ));
        }
        write_private(&folder.join(ENVIRONMENT_FILE_NAME), text.as_bytes())
    }

    /// Reads a file written by [`EnvironmentFile::write`].
    pub(crate) fn read(folder: &Path) -> Result<Self, Exit> {
        let path = folder.join(ENVIRONMENT_FILE_NAME);
        let bytes = read_optional(&path)?.ok_or_else(|| {
            Exit::unavailable(format!(
                "{}: not found; start postern with this --data-dir first",
                path.display()
            ))
        })?;
        let mut environment = Self::default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            let pair = line
                .strip_prefix("export ")
                .and_then(|line| line.split_once("='"));
            if let Some((name, value)) = pair {
                let value = value.strip_suffix('\'').unwrap_or_default();
                environment.add(name, value.replace(r"'\''", "'"));
            }
        }
        Ok(environment)
    }
}

fn export((name, value): &(String, String)) -> String {
    format!("export {name}='{}'\n", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script without variables. Returns its output and errors.
    fn shell(script: &str) -> (String, String) {
        let mut shell = std::process::Command::new("sh");
        let said = shell.args(["-c", script]).env_clear().output().expect("sh");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (text(said.stdout), text(said.stderr))
    }

    #[test]
    fn environment_file_is_read_identically_by_shell() {
        let folder = tempfile::tempdir().expect("folder");
        let mut environment = EnvironmentFile::default();
        let odd = "a'b\"c $HOME `x` \\ =";
        environment.add("ODD", odd);
        environment.add("ODD", "second");
        environment.write(folder.path()).expect("written");
        let again = EnvironmentFile::read(folder.path()).expect("read");
        assert_eq!(again.get("ODD"), Some(odd));
        let file = folder.path().join(ENVIRONMENT_FILE_NAME);
        let script = format!(". {}; printf %s \"$ODD\"", file.display());
        assert_eq!(shell(&script).0, odd);
    }

    #[test]
    fn existing_aws_variables_are_kept() {
        let folder = tempfile::tempdir().expect("folder");
        let mut environment = EnvironmentFile::default();
        environment.add("AWS_ACCESS_KEY_ID", "local");
        environment.add("AWS_REGION", "local-1");
        environment.add("POSTERN_URL", "http://gate");
        environment.write(folder.path()).expect("written");
        let file = folder.path().join(ENVIRONMENT_FILE_NAME);
        let read_file = format!(". {}", file.display());
        let show = "printf '%s,' \"$AWS_ACCESS_KEY_ID\" \"${AWS_REGION:-}\" \"$POSTERN_URL\"";
        let load = |before: &str| shell(&format!("set -eu; {before}\n{read_file}; {show}"));
        let local = "local,local-1,http://gate,".to_owned();
        let (stdout, stderr) = load("export AWS_ACCESS_KEY_ID=mine");
        assert_eq!(stdout, "mine,,http://gate,", "all or none: no mixture");
        assert!(stderr.contains("were kept"), "{stderr}");
        let stdout = load("AWS_ACCESS_KEY_ID=mine POSTERN_AWS=local").0;
        assert_eq!(stdout, local);
        for before in ["", &read_file] {
            assert_eq!(load(before), (local.clone(), String::new()), "{before}");
        }
        let read = EnvironmentFile::read(folder.path()).expect("read");
        assert_eq!(read.get("AWS_ACCESS_KEY_ID"), Some("local"));
    }

    #[test]
    fn missing_environment_file_is_reported() {
        let folder = tempfile::tempdir().expect("folder");
        let exit = EnvironmentFile::read(folder.path()).expect_err("a missing file");
        assert_eq!(exit.status(), 69);
        assert!(exit.message().contains("start postern"), "{exit}");
    }
}
