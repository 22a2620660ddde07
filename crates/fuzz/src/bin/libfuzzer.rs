//! Runs libFuzzer with the target that `ZMOVE_FUZZ_TARGET` names. `.ci/fuzz` builds and runs this program.
//!
//! Without a target it lists all targets like `zmove-fuzz list`, so that `.ci/fuzz` needs to build only one program.
//! Before it reads any input, it writes the target's seeds to the directory `ZMOVE_FUZZ_SEEDS`.

#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use zmove_fuzz::{Target, list_targets};

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(
    init: {
        let Ok(name) = std::env::var("ZMOVE_FUZZ_TARGET") else {
            list_targets();
            std::process::exit(0);
        };
        let target = Target::named(&name).expect("ZMOVE_FUZZ_TARGET is one of 'zmove-fuzz list'");
        if let Some(seeds) = std::env::var_os("ZMOVE_FUZZ_SEEDS") {
            target.write_seeds(Path::new(&seeds)).expect("the seeds can be written");
        }
        TARGET.get_or_init(|| target);
    },
    |input: &[u8]| {
        TARGET.get().expect("it is set at the start").run(input);
    }
);
