//! Output that is generated from the definition of the command line: shell completions and the manual.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use zmove_types::Escaped;

use crate::args::Args;
use crate::display::terminal;
use crate::value::exit::Exit;

/// Runs `zmove completions`.
pub(crate) fn completions(shell: Shell) -> Exit {
    terminal::print(completions_for(shell));
    Exit::Done
}

fn completions_for(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "zmove", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Runs `zmove man`: writes `zmove.1`, `zmove-push.1` and so on.
pub(crate) fn manual(directory: &Path) -> Result<Exit> {
    let mut command = with_all_texts(Args::command().disable_help_subcommand(true));
    // `build` gives the subcommands their full names.
    command.build();
    write_pages(&command, directory)
        .with_context(|| format!("write the manual to '{}'", Escaped::path(directory)))?;
    Ok(Exit::Done)
}

/// Makes all options visible, because clap_mangen leaves out options that are hidden in the short help.
fn with_all_texts(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| arg.hide_short_help(false))
        .mut_subcommands(with_all_texts)
}

fn write_pages(command: &clap::Command, directory: &Path) -> std::io::Result<()> {
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write_pages(below, directory)?;
    }
    let page = Man::new(command.clone())
        .manual("zmove")
        .source(concat!("zmove ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    // `.ad l` and `.nh` disable justification and hyphenation, so that commands and paths appear as they are typed.
    let text = text.replacen(".SH NAME\n", ".ad l\n.nh\n.SH NAME\n", 1);
    // If lines of the text after the options are indented, `.nf` keeps the line breaks of that text.
    let below = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let heading = if below.contains("\n  ") {
        ".SH NOTES\n.nf\n"
    } else {
        ".SH NOTES\n"
    };
    terminal::write_file(
        &directory.join(page.get_filename()),
        &text.replacen(".SH EXTRA\n", heading, 1),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};
    use std::fmt::Write as _;

    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_is_told_of_every_command_in_sight() {
        let command = Args::command();
        for shell in Shell::value_variants() {
            let script = completions_for(*shell);
            let is_letter = |letter: char| letter.is_alphanumeric() || letter == '-';
            let words: HashSet<_> = script.split(|letter| !is_letter(letter)).collect();
            for shown in command
                .get_subcommands()
                .filter(|command| !command.is_hide_set())
            {
                assert!(
                    words.contains(shown.get_name()),
                    "{shell}: {}",
                    shown.get_name()
                );
            }
        }
    }

    #[test]
    fn every_command_in_sight_has_its_page() {
        let directory = tempfile::tempdir().unwrap();
        manual(directory.path()).unwrap();
        let name_of =
            |command: &clap::Command, above: &str| format!("{above}{}", command.get_name());
        let mut wanted = vec!["zmove.1".to_owned()];
        for command in Args::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let name = name_of(command, "zmove-");
            wanted.extend(
                command
                    .get_subcommands()
                    .filter(|below| !below.is_hide_set())
                    .map(|below| name_of(below, &format!("{name}-")) + ".1"),
            );
            wanted.push(name + ".1");
        }
        wanted.sort();
        let entries = std::fs::read_dir(directory.path()).unwrap();
        let mut written: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        written.sort();
        assert_eq!(written, wanted);
        for name in written {
            let text = std::fs::read_to_string(directory.path().join(&name)).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{name}");
        }
        let push = std::fs::read_to_string(directory.path().join("zmove-push.1")).unwrap();
        for part in [
            "Change nothing, and list what would be done",
            "What to send (",
        ] {
            assert!(push.contains(part), "{part}");
        }
    }

    /// Returns the two tables of commands and options in REFERENCE.md.
    fn reference() -> String {
        let mut command = Args::command().disable_help_subcommand(true);
        command.build();
        let mut text = "| command | |\n|---|---|\n".to_owned();
        let mut commands_of_option: BTreeMap<String, Vec<String>> = BTreeMap::new();
        list_commands(&command, &mut text, &mut commands_of_option);
        let mut options_of_commands: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
        for (option, commands) in commands_of_option {
            options_of_commands
                .entry(commands)
                .or_default()
                .push(option);
        }
        text.push_str("\n| options | commands |\n|---|---|\n");
        for (commands, options) in options_of_commands {
            writeln!(text, "| {} | {} |", options.join(", "), commands.join(", ")).unwrap();
        }
        text
    }

    fn list_commands(
        command: &clap::Command,
        text: &mut String,
        commands_of_option: &mut BTreeMap<String, Vec<String>>,
    ) {
        let is_shown = |command: &&clap::Command| !command.is_hide_set();
        for below in command.get_subcommands().filter(is_shown) {
            let name = below.get_bin_name().unwrap().trim_start_matches("zmove ");
            let about = below.get_about().unwrap();
            writeln!(text, "| `{name}` | {about} |").unwrap();
            let is_option = |arg: &&clap::Arg| {
                !arg.is_positional() && !arg.is_hide_set() && arg.get_id() != "help"
            };
            for option in below.get_arguments().filter(is_option) {
                let long = option.get_long().map(|long| format!("`--{long}`"));
                let short = option.get_short().map(|short| format!("`-{short}`"));
                let names = [short, long]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" ");
                commands_of_option
                    .entry(names)
                    .or_default()
                    .push(name.to_owned());
            }
            list_commands(below, text, commands_of_option);
        }
    }

    /// With `ZMOVE_WRITE_DOCS` in the environment, this test writes the tables.
    #[test]
    fn the_reference_lists_all_commands_and_options() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/REFERENCE.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once("## Commands\n\n").unwrap();
        let (listed, after) = rest.split_once("\n## ").unwrap();
        let expected = reference();
        if std::env::var_os("ZMOVE_WRITE_DOCS").is_some() {
            let page = format!("{before}## Commands\n\n{expected}\n## {after}");
            std::fs::write(&path, page).unwrap();
            return;
        }
        assert_eq!(
            listed, expected,
            "ZMOVE_WRITE_DOCS=1 cargo test -p zmove-cli reference writes the tables"
        );
    }
}
