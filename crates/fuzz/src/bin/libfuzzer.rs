//! libFuzzer with the target that `ZMOVE_FUZZ_TARGET` names; `.ci/fuzz` builds and runs it.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use zmove_fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("ZMOVE_FUZZ_TARGET").expect("ZMOVE_FUZZ_TARGET names a target");
        let target = Target::named(&name).expect("ZMOVE_FUZZ_TARGET is one of 'zmove-fuzz list'");
        TARGET.get_or_init(|| target);
    },
    |input: &[u8]| {
        TARGET.get().expect("it is set at the start").run(input);
    }
);
