//! The subcommands that all programs have: `completions SHELL` and `man [FOLDER]`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

const COMPLETIONS: &str = "completions";
const MAN: &str = "man";

/// Adds the subcommands to those of a program.
pub(crate) fn with_documentation(command: Command) -> Command {
    let shell = Arg::new("SHELL")
        .required(true)
        .value_parser(value_parser!(Shell))
        .help("Shell");
    let name = command.get_name().to_owned();
    let folder = Arg::new("FOLDER")
        .value_parser(value_parser!(PathBuf))
        .help("Folder for the pages of the program and its commands");
    command
        .subcommand(
            Command::new(COMPLETIONS)
                .about("Print a script with completions for a shell")
                .after_help(format!(
                    "Example:\n  {name} completions bash > /etc/bash_completion.d/{name}"
                ))
                .arg(shell),
        )
        .subcommand(
            Command::new(MAN)
                .about("Print the manual page, or write all pages into a folder")
                .after_help(format!(
                    "Examples:\n  {name} man | man -l -\n  {name} man /usr/local/share/man/man1"
                ))
                .arg(folder),
        )
}

/// Carries out such a subcommand; `None` if the arguments contain none.
pub(crate) fn documentation(
    matches: &ArgMatches,
    command: &Command,
    out: &mut dyn Write,
) -> Option<io::Result<()>> {
    match matches.subcommand()? {
        (COMPLETIONS, arguments) => {
            let shell = *arguments.get_one::<Shell>("SHELL")?;
            Some(write_completions(shell, command.clone(), out))
        }
        (MAN, arguments) => {
            let folder = arguments.get_one::<PathBuf>("FOLDER");
            Some(write_manual(folder, command.clone(), out))
        }
        _ => None,
    }
}

fn write_completions(shell: Shell, mut command: Command, out: &mut dyn Write) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    out.write_all(&script)
}

fn write_manual(folder: Option<&PathBuf>, command: Command, out: &mut dyn Write) -> io::Result<()> {
    match folder {
        Some(folder) => clap_mangen::generate_to(command, folder),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            out.write_all(&page)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(arguments: &[&str]) -> Option<String> {
        let command = Command::new("program").subcommand(Command::new("run").about("Run it"));
        let command = with_documentation(command);
        let words = std::iter::once("program").chain(arguments.iter().copied());
        let matches = command.clone().try_get_matches_from(words).ok()?;
        let mut out = Vec::new();
        documentation(&matches, &command, &mut out)?.expect("written");
        String::from_utf8(out).ok()
    }

    #[test]
    fn completions_contain_the_commands() {
        for shell in ["bash", "zsh", "fish"] {
            let script = output(&["completions", shell]).expect(shell);
            assert!(script.contains("run") && script.contains("man"), "{script}");
        }
        assert_eq!(output(&["completions", "no-such-shell"]), None);
        assert_eq!(output(&["run"]), None);
    }

    #[test]
    fn manual_is_printed_or_written_by_command() {
        let page = output(&["man"]).expect("a page");
        assert!(
            page.contains(".TH program") && page.contains("run"),
            "{page}"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("UTF-8");
        assert_eq!(output(&["man", path]).expect("pages"), "");
        for file in ["program.1", "program-run.1"] {
            assert!(folder.path().join(file).exists(), "{file}");
        }
    }
}
