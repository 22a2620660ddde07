//! The fuzz targets of this crate, which `crates/fuzz` runs. Each function accepts any bytes, and panics if a parser
//! violates its contract.
//!
//! The program never calls these functions, so they are not in its binary.

use zmove_types::{RateLimit, parse_size};

use crate::value::age::Age;

pub use crate::args::shared::selection::fuzzing::filters;
pub use crate::commands::serve::config::fuzzing::config;

/// Parses words of the command line: sizes, rates and time spans.
///
/// # Panics
/// Panics if a parsed value cannot be displayed.
pub fn quantities(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    drop(
        parse_size(text)
            .map(|size| size.to_string())
            .map_err(|error| error.to_string()),
    );
    drop(
        text.parse::<RateLimit>()
            .map(|limit| limit.to_string())
            .map_err(|error| error.to_string()),
    );
    drop(text.parse::<Age>().map(|age| age.to_string()));
}
