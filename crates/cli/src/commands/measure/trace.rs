//! `zmove trace`: summarizes or plots a trace that `push --trace` wrote.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use zmove_tools::trace::Trace;
use zmove_types::Escaped;

use crate::args::TraceArgs;
use crate::display::terminal;
use crate::value::exit::{Exit, usage_error};

/// Runs `zmove trace`.
pub(crate) fn run(args: &TraceArgs) -> Result<Exit> {
    let shown = Escaped::path(&args.file);
    let file = File::open(&args.file).with_context(|| format!("open the trace '{shown}'"))?;
    let trace =
        Trace::read(BufReader::new(file)).with_context(|| format!("read the trace '{shown}'"))?;
    let Some(picture) = &args.svg else {
        terminal::print(trace.summary());
        return Ok(Exit::Done);
    };
    if is_same(&args.file, picture) {
        return Err(usage_error("the picture would replace the trace"));
    }
    terminal::save(picture, &trace.picture())?;
    Ok(Exit::Done)
}

fn is_same(trace: &Path, picture: &Path) -> bool {
    trace.canonicalize().ok() == picture.canonicalize().ok() && picture.exists()
}
