//! Runs every target on its seeds and its saved corpus, in an ordinary build.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use zmove_fuzz::{TARGETS, Target, decodes};

/// This is a single test for all targets, because the memory limit applies to the whole process.
#[test]
fn no_kept_input_makes_a_decoder_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut kept: Vec<_> = names_in(&corpus);
    kept.retain(|name| Target::named(name).is_none());
    assert!(kept.is_empty(), "no targets: {kept:?}");
    check_that_most_decodes(&corpus);
    let mut failed = Vec::new();
    for target in TARGETS {
        let mut inputs: Vec<_> = target
            .seeds()
            .into_iter()
            .map(|seed| ("a seed".to_owned(), seed))
            .collect();
        let directory = corpus.join(target.name);
        for name in names_in(&directory) {
            let input = fs::read(directory.join(&name)).unwrap();
            inputs.push((name, input));
        }
        for (name, input) in inputs {
            eprintln!("{}: {name}", target.name);
            if catch_unwind(AssertUnwindSafe(|| target.run(&input))).is_err() {
                failed.push(format!("{}: {name}", target.name));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A corpus of a different wire version would only exercise the rejections.
fn check_that_most_decodes(corpus: &Path) {
    let mut checked = 0;
    for target in TARGETS {
        let directory = corpus.join(target.name);
        let inputs = names_in(&directory)
            .into_iter()
            .map(|name| fs::read(directory.join(name)).unwrap());
        let decoded: Option<Vec<bool>> = inputs.map(|input| decodes(target.name, &input)).collect();
        let Some(decoded) = decoded else { continue };
        let count = decoded.iter().filter(|decoded| **decoded).count();
        let least = decoded.len() * DECODING_PERCENT_MIN / 100;
        assert!(
            count > 0 && count >= least,
            "{}: {count} of {} inputs decode, {least} should",
            target.name,
            decoded.len()
        );
        for seed in target.seeds() {
            assert_eq!(
                decodes(target.name, &seed),
                Some(true),
                "a seed of {}",
                target.name
            );
        }
        checked += 1;
    }
    assert_eq!(checked, 9, "decoders of the wire");
}

/// Minimum percentage of a wire decoder's corpus that must decode.
const DECODING_PERCENT_MIN: usize = 40;

fn names_in(directory: &Path) -> Vec<String> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}
