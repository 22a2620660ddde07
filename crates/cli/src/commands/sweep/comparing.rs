//! `zmove sweep --compare`: this storage beside a reference, and the transfer rate that this lets one expect.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use zmove_tools::sweep::{Compared, Comparison, Sweep};
use zmove_types::{ByteCount, ByteRate, Escaped};

use crate::args::ReferenceRate;
use crate::display::terminal::{self, Printable};
use crate::value::exit::{Exit, usage_error};
use zmove_tools::drawing::scale::size_label;

/// Prints the comparison of two files.
pub(super) fn run((here, reference): (&Path, &Path), rates: &[ReferenceRate]) -> Result<Exit> {
    let here = read(here)?;
    let reference = read(reference)?;
    let comparison = Comparison::new(&here, &reference).ok_or_else(|| {
        usage_error("the two sweeps have no file size in common, or do not say how fast a core is")
    })?;
    terminal::print(text(&here, &reference, &comparison, rates));
    Ok(Exit::Done)
}

fn read(path: &Path) -> Result<Sweep> {
    let shown = || format!("read the sweep '{}'", Escaped::path(&path));
    let text = fs::read_to_string(path).with_context(shown)?;
    Sweep::from_json(&text).with_context(shown)
}

fn text(
    here: &Sweep,
    reference: &Sweep,
    comparison: &Comparison,
    rates: &[ReferenceRate],
) -> String {
    let named = |sweep: &Sweep| {
        Printable(format!(
            "{} on {} ({})",
            sweep.storage.path, sweep.host.name, sweep.host.cpu
        ))
    };
    let mut text = format!(
        "here:      {}\nreference: {}\nF_c = {:.2} (how fast one core is, here over there)\n\n",
        named(here),
        named(reference),
        comparison.cpu,
    );
    text += "     size  F_s write   F_s read      F_s   U_b = F_s x F_c x E_1\n";
    for size in &comparison.sizes {
        let shown =
            |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        text += &format!(
            "{:>9} {:>10} {:>10} {:>8.2}   {}\n",
            size_label(size.file_bytes),
            shown(size.write),
            shown(size.read),
            size.storage(),
            bound(size, comparison.cpu, rates),
        );
    }
    text + SOURCE
}

const SOURCE: &str = "\
F_s is the lesser of writing and reading: a transfer does both. By the postulation of \"When to use rsync\"
(Chin Fang, R. \"Les\" A. Cottrell, Ezra Kissel); E_1 is the transfer rate that the reference has reached (--e1).
";

/// The bound itself where the rate of the reference is known, else the factor of that rate.
fn bound(size: &Compared, cpu: f64, rates: &[ReferenceRate]) -> String {
    let of_this_size = rates
        .iter()
        .find(|rate| rate.file_bytes == Some(size.file_bytes));
    let known = of_this_size.or_else(|| rates.iter().find(|rate| rate.file_bytes.is_none()));
    let share = size.storage() * cpu;
    match known {
        Some(known) => {
            let rate = ByteCount(known.rate.bytes_per_second()).as_f64();
            ByteRate(share * rate).to_string()
        }
        None => format!("{share:.2} x E_1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_size_goes_before_that_of_all() {
        let size = Compared {
            file_bytes: 1024,
            write: Some(0.65),
            read: Some(0.7),
        };
        let rates: Vec<ReferenceRate> = ["1Gbit", "1KiB=10Gbit"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(bound(&size, 0.8, &rates), "5.20 Gbit/s");
        assert_eq!(
            bound(
                &Compared {
                    file_bytes: 4096,
                    ..size
                },
                0.8,
                &rates
            ),
            "520 Mbit/s"
        );
        assert_eq!(bound(&size, 0.8, &[]), "0.52 x E_1");
    }
}
