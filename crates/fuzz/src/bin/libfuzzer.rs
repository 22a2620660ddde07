//! libFuzzer with the target that `ZMOVE_FUZZ_TARGET` names; `.ci/fuzz` builds and runs it.
//!
//! Without a target it lists all of them, as `zmove-fuzz list` does, so that `.ci/fuzz` builds one program and not two.
//! It writes the target's seeds to `ZMOVE_FUZZ_SEEDS` before it reads any input.

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
