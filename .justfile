# Each recipe runs a part of CI (.ci/run) with the same commands.

export CARGO_TERM_COLOR := "never"

# list the recipes
default:
    @just --list --justfile {{justfile()}}

# formatting and lints
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --features zmove-fuzz/libfuzzer --locked -- -D warnings

# all tests; as root, including those that need namespaces
test:
    cargo test --workspace --locked

# transfers that are killed, disconnected and disturbed until a repeated command completes them
torture rounds="50" seed="1":
    cargo build --release --locked --package zmove --package zmove-lab --bin zmove --bin zmove-lab
    target/release/zmove-lab torture --rounds {{rounds}} --seed {{seed}} --keep-going

# receivers that are stopped, lose their senders, and resume after another transfer; needs nats-server
wake rounds="50" seed="1":
    cargo build --release --locked --package zmove --package zmove-lab --bin zmove --bin zmove-lab
    target/release/zmove-lab wake --rounds {{rounds}} --seed {{seed}} --at-once 4 --keep-going

# power cuts and failed flushes on four file systems, as root
powercut rounds="10" seed="1":
    cargo build --release --locked --package zmove --package zmove-lab --bin zmove --bin zmove-lab
    target/release/zmove-lab powercut --rounds {{rounds}} --seed {{seed}} --keep-going

# long runs of tests that CI runs briefly: torture, stopped receivers, power cuts and the fuzzer; as root, takes hours
soak seed="1":
    just torture 1000 {{seed}}
    just wake 2000 {{seed}}
    just powercut 200 {{seed}}
    just fuzz 3600
    cargo test --workspace --locked --test e2e -- --ignored --exact sources::links::full_size::all_of_it_goes_on

# libFuzzer on every decoder, or on the given targets
fuzz seconds="60" *targets:
    .ci/fuzz {{seconds}} {{targets}}

# each benchmark once, without measuring; `cargo bench --bench NAME` measures
bench:
    ZMOVE_BENCH_FILES=2000 ZMOVE_BENCH_MIB=16 cargo bench --locked --bench chunk --bench lanes --bench scan --bench loopback --bench store -- --test

# the documentation of all crates
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace --locked

# licenses, advisories and banned crates; needs cargo-deny
deny:
    cargo deny --config .deny.toml check

# packages, a static binary and checksums in target/release-files; .package/build lists the required tools
release:
    .package/build

# the package in a clean Debian: install, run, push, remove; as root
package:
    cargo build --release --locked --package zmove
    .ci/package

# an image with the receiver from the packages of `just release`; with podman or docker
container engine="podman":
    {{engine}} build --file .package/containerfile --tag zmove target/release-files
