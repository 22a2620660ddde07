//! `zmove doctor`: checks this host and the path to a receiver for problems that slow down or break transfers.
//!
//! Facts about the kernel come from [`Root`], so that tests can substitute a directory tree. **Invariant:** nothing is
//! changed on either host. A fact that cannot be determined is reported as unknown.

mod finding;
mod homes;
pub(crate) mod link;
mod peer;
mod peer_findings;
mod report;
mod root;
mod storage;
mod system;
mod tcp;
mod windows;

use anyhow::Result;
use zmove_disk::cores;
use zmove_engine::{RATE_TARGET, Remote};
use zmove_types::{ByteCount, ByteRate};

use crate::args::DoctorArgs;
use crate::display::terminal;
use crate::settings;
use crate::value::exit::Exit;
use crate::value::version::VERSION;

use finding::{Finding, Severity};
use link::Link;
use peer::Peer;
use report::{Colour, Report};
use root::Root;
use windows::Paths;

/// The role of this host in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferRole {
    /// The host may send and receive.
    Either,
    /// The host sends to the named receiver.
    Sender,
}

/// Runs `zmove doctor`.
pub(crate) fn run(args: &DoctorArgs) -> Result<Exit> {
    let peer = args.host.as_ref().map(dial_peer).transpose()?;
    let report = examine(&Root::host(), args, peer.as_ref());
    if args.json {
        terminal::print(format_args!("{}\n", report.json()));
    } else {
        terminal::print(report.text(Colour::of_stdout()));
    }
    Ok(if report.count(Severity::Bad) > 0 {
        Exit::DoctorFoundProblem
    } else {
        Exit::Done
    })
}

fn dial_peer(host: &Remote) -> Result<Peer> {
    let home = settings::home(settings::Role::Client)?;
    settings::block_on(2, Peer::dial(host, &home))
}

fn examine(root: &Root, args: &DoctorArgs, peer: Option<&Peer>) -> Report {
    let part = if peer.is_some() {
        TransferRole::Sender
    } else {
        TransferRole::Either
    };
    let link = Link::gather(root, peer.and_then(Peer::address));
    let asked = args
        .rate
        .map(|rate| ByteRate(ByteCount(rate.bytes_per_second()).as_f64()));
    let rate = asked.or(link.rate).unwrap_or(ByteRate(RATE_TARGET));
    let paths = Paths {
        rate,
        round_trip: peer.and_then(Peer::round_trip),
        cores: cores(),
    };
    let mut network = link.judge(rate);
    network.extend(windows::judge(root, &paths, part));
    network.extend(tcp::judge(root, link.mtu));
    let mut host = vec![Finding::ok("zmove", VERSION.as_str())];
    host.extend(system::judge(root));
    host.extend(homes::judge());
    host.extend(storage::judge(root, &args.path, part));
    let mut report = Report::default();
    report.add("this host", host);
    report.add(format!("its network, for {rate}"), network);
    if let Some(peer) = peer {
        report.add(
            format!("the receiver at {}", peer.host),
            peer_findings::findings(peer, link.mtu),
        );
    }
    report
}
