//! Checks of the command tree of a program: help and examples.

use clap::{Command, CommandFactory};

/// Asserts that each command of a program has a text and an example, that each option and argument
/// has a text, and that the program accepts the examples.
pub fn assert_commands_documented<P: CommandFactory>() {
    let found = undocumented(&P::command());
    assert!(found.is_empty(), "{found:#?}");
}

/// A command with the names that lead to it, the program's first.
struct CommandPath<'a> {
    names: Vec<&'a str>,
    command: &'a Command,
}

/// Returns what is not documented, one line each.
fn undocumented(program: &Command) -> Vec<String> {
    let mut commands = Vec::new();
    collect(program, &[], &mut commands);
    let mut found = Vec::new();
    for path in &commands {
        found.extend(path.without_help());
        found.extend(path.rejected_examples(program));
    }
    found
}

fn collect<'a>(command: &'a Command, parents: &[&'a str], found: &mut Vec<CommandPath<'a>>) {
    let names = [parents, &[command.get_name()]].concat();
    for subcommand in command.get_subcommands() {
        collect(subcommand, &names, found);
    }
    found.push(CommandPath { names, command });
}

/// Splits a command line as a shell does, up to the first redirection or pipe. Single quotes are
/// the only ones that the examples use.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut is_quoted = false;
    for character in line.chars() {
        match character {
            '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '>' | '<' | '|' if !is_quoted => break,
            ' ' if !is_quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

impl CommandPath<'_> {
    fn label(&self) -> String {
        self.names.join(" ")
    }

    fn examples(&self) -> Vec<Vec<String>> {
        let help = self.command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
        lines.map(shell_words).collect()
    }

    fn without_help(&self) -> Vec<String> {
        let label = self.label();
        let mut found = Vec::new();
        if self.command.get_about().is_none() {
            found.push(format!("{label}: no text"));
        }
        let own: Vec<String> = self.names.iter().map(ToString::to_string).collect();
        let is_own = |words: &Vec<String>| words.starts_with(&own);
        if !self.examples().iter().any(is_own) {
            found.push(format!("{label}: no example of it"));
        }
        let arguments = self.command.get_arguments();
        let silent = arguments.filter(|argument| argument.get_help().is_none());
        found.extend(silent.map(|argument| format!("{label}: no text for {}", argument.get_id())));
        found
    }

    fn rejected_examples(&self, program: &Command) -> Vec<String> {
        let parse = |words: Vec<String>| {
            let parsed = program.clone().try_get_matches_from(&words);
            let error = parsed.err()?;
            Some(format!("{}: {error}", words.join(" ")))
        };
        self.examples().into_iter().filter_map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Parser, Subcommand};

    use super::*;

    /// A program.
    #[derive(Parser)]
    #[command(
        name = "tool",
        after_help = "Example:\n  tool good --size 1 'a b' | cat"
    )]
    struct Tool {
        #[command(subcommand)]
        command: Option<ToolCommand>,
    }

    #[derive(Subcommand)]
    enum ToolCommand {
        /// A documented command.
        #[command(after_help = "Example:\n  tool good")]
        Good(GoodArguments),
        #[command(after_help = "Example:\n  tool bad --sise 1\n  tool good")]
        Bad {
            #[arg(long)]
            size: u8,
        },
        /// A command with the example of another.
        #[command(after_help = "Example:\n  tool good")]
        Other,
    }

    #[derive(Args)]
    struct GoodArguments {
        /// The size.
        #[arg(long)]
        size: Option<u8>,
        /// The files.
        files: Vec<String>,
    }

    #[test]
    fn undocumented_commands_and_options_are_named() {
        let found = undocumented(&Tool::command());
        let expected = [
            "tool bad: no text",
            "tool bad: no text for size",
            "tool bad --sise 1: error: unexpected argument",
            "tool other: no example of it",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (line, beginning) in found.iter().zip(expected) {
            assert!(line.starts_with(beginning), "{line}");
        }
    }
}
