//! `zmove trace`: sums up or draws what `push --trace` has written.

pub(crate) mod fuzzing;
mod panels;
mod picture;
mod read;
mod series;
mod table;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use zmove_types::Escaped;

use crate::args::TraceArgs;
use crate::display::terminal;
use crate::value::exit::{Exit, usage_error};
use zmove_tools::drawing::Heading;

/// Runs `zmove trace`.
pub(crate) fn run(args: &TraceArgs) -> Result<Exit> {
    let shown = Escaped::path(&args.file);
    let file = File::open(&args.file).with_context(|| format!("open the trace '{shown}'"))?;
    let (lines, about) =
        read::read(BufReader::new(file)).with_context(|| format!("read the trace '{shown}'"))?;
    let Some(picture) = &args.svg else {
        terminal::print(table::summary(&lines, &about));
        return Ok(Exit::Done);
    };
    if is_same(&args.file, picture) {
        return Err(usage_error("the picture would replace the trace"));
    }
    let (title, below) = table::heading(&lines, &about);
    let seconds = lines.last().map_or(0.0, |line| line.seconds);
    let svg = picture::draw(&Heading { title, below }, &panels::panels(&lines), seconds);
    terminal::save(picture, &svg)?;
    Ok(Exit::Done)
}

fn is_same(trace: &Path, picture: &Path) -> bool {
    trace.canonicalize().ok() == picture.canonicalize().ok() && picture.exists()
}
