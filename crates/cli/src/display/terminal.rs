//! Prints lines for the user. A closed terminal or pipe is not a failure (`output` handles all other failures of
//! standard output). Names from other hosts cannot control the terminal: characters that [cannot be
//! shown](zmove_types::is_unprintable) are escaped, even if the caller did not escape a name in the text.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use zmove_disk::close;
use zmove_engine::{Causes, Listener, Notice};
use zmove_types::Escaped;
pub(crate) use zmove_types::Printable;

use crate::display::format::wrapped_within;
use crate::display::output;

/// Writes a line to standard error. Wraps it at spaces to the width of the terminal.
pub(crate) fn warn(text: impl Display) {
    let mut line = format!("zmove: {}", Printable(text));
    if let Some(columns) = columns(io::stderr()) {
        line = wrapped_within(&line, columns);
    }
    line.push('\n');
    // The result is ignored, because the reader may have closed standard error. The stream is not buffered, and each
    // line is a single write.
    let _nobody_reads = io::stderr().write_all(line.as_bytes());
}

/// Writes text to standard output unchanged.
pub(crate) fn print(text: impl Display) {
    output::write(text);
}

/// Writes lines to standard output. If standard output is a terminal, the lines are wrapped at spaces. Otherwise, they
/// are not wrapped.
pub(crate) fn print_lines(text: &str) {
    let width = columns(io::stdout());
    text.lines()
        .map(|line| Printable(line).to_string())
        .for_each(|line| match width {
            Some(columns) => print(format_args!("{}\n", wrapped_within(&line, columns))),
            None => print(format_args!("{line}\n")),
        });
}

/// Returns the width of a standard stream in columns. Returns `None` if the stream is not a terminal.
pub(crate) fn columns(stream: impl AsFd + IsTerminal) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(&stream)
        .ok()
        .filter(|_| stream.is_terminal())?;
    // A terminal that does not know its size reports 0.
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Interval between two redraws of a spinner.
const TICK: Duration = Duration::from_millis(200);

/// Writes a line to standard output.
pub(crate) fn say(text: impl Display) {
    print(format_args!("{}\n", Printable(text)));
}

/// Formats an error and its causes. A cause that repeats the text of another is left out.
pub(crate) fn causes(error: &anyhow::Error) -> impl Display {
    Causes(error.as_ref())
}

/// Shows a spinner or bar on standard error while an operation runs, if standard error is a terminal.
pub(crate) fn running(template: &str) -> ProgressBar {
    let bar = ProgressBar::hidden();
    if io::stderr().is_terminal() {
        draw(&bar, template);
        tick(&bar);
    }
    bar
}

/// Redraws a spinner at regular intervals until it is finished. If the thread for this cannot be started, the spinner
/// does not move.
fn tick(bar: &ProgressBar) {
    let bar = bar.downgrade();
    let tick = move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            thread::sleep(TICK);
        }
    };
    drop(thread::Builder::new().spawn(tick));
}

/// Changes the template of a bar.
pub(crate) fn style(bar: &ProgressBar, template: &str) {
    bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
}

/// Shows a hidden bar.
pub(crate) fn draw(bar: &ProgressBar, template: &str) {
    style(bar, template);
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
}

/// Writes a file that the user requested.
pub(crate) fn save(file: &Path, text: &str) -> anyhow::Result<()> {
    write_file(file, text).with_context(|| format!("write '{}'", Escaped::path(&file)))
}

/// Writes a file and closes it, because some file systems report a lack of space only on close.
pub(crate) fn write_file(file: &Path, text: &str) -> io::Result<()> {
    let mut opened = File::create(file)?;
    opened.write_all(text.as_bytes())?;
    close(opened)
}

/// A listener for operations without a progress bar. It prints each notice as a line on standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoticeLines;

impl Listener for NoticeLines {
    fn hear(&self, notice: &Notice<'_>) {
        match notice {
            Notice::SessionBegins { .. } => {}
            Notice::Dialling { .. } if !io::stderr().is_terminal() => {}
            notice => warn(notice),
        }
    }
}

/// Quotes a path as a single shell word.
pub(crate) fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    shlex::try_quote(&path).map_or_else(|_| path.to_string(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let error = anyhow::Error::msg("refused")
            .context("dial: refused")
            .context("push");
        assert_eq!(causes(&error).to_string(), "push: dial: refused");
    }
}
