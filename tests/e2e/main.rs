//! zmove as its users run it: whole programs and whole pipelines, one file per theme.
//!
//! Every case that can runs twice, against a daemon over TCP and TLS and against a local directory through
//! the memory transport. Cases run concurrently; a case that measures takes the machine for itself
//! ([`quiet_machine`]). What a machine cannot show is skipped with its reason on stderr, unless
//! `ZMOVE_REQUIRE_LAB=1` forbids that.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

mod command;
mod daemon;
mod dead_mount;
mod deceiver;
mod half_cut;
mod harness;
mod hooked_queue;
mod hooks;
mod inprocess;
mod intruder;
mod namespace;
mod ports;
mod proxy;
mod quiet_machine;
mod rsync;
mod tree;

mod api;
mod authority;
mod bad_sources;
mod bad_targets;
mod black_hole;
mod breakage;
mod busy;
mod changing;
mod changing_mirror;
mod clean;
mod clear;
mod clock;
mod clusters;
mod confine;
mod copy;
mod counters;
mod delete;
mod delta;
mod doctor;
mod dry_run;
mod exit_codes;
mod faults;
mod forged;
mod full_disk;
mod generated;
mod giving_way;
mod grants;
mod greed;
mod habits;
mod holes;
mod host;
mod hostile;
mod identities;
mod inplace;
mod job_grants;
mod jobs;
mod journal;
mod keys;
mod limit;
mod limits;
mod links;
mod manifest;
mod many_lanes;
mod media;
mod merged;
mod metadata;
mod more_lanes;
mod one_writer;
mod operator;
mod outages;
mod output;
mod overwrite;
mod paths;
mod peers;
mod pings;
mod privileges;
mod probe;
mod process_limits;
mod pull;
mod python;
mod quic;
mod reconnect;
mod renames;
mod resume;
mod resync;
mod root;
mod roots;
mod scan;
mod schema;
mod selection;
mod service;
mod shared;
mod slashes;
mod spread;
mod ssh;
mod storage;
mod straggler;
mod subvolumes;
mod sweep;
mod tamper;
mod times;
mod trees;
mod trust;
mod unread;
mod verdict;
mod verify;
