//! Measures the cost of an item. Not a test: `cargo test --release … rate -- --ignored --nocapture` prints figures.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zmove_cluster::WorkQueue;

use crate::lab::{Lab, data, put_all};

const ITEMS: u32 = 50_000;
const MOVERS: usize = 8;

/// Returns the CPU time that a process has used.
fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}

fn report(what: &str, lab: &Lab, began: Instant, before: Duration) {
    let (seconds, used) = (began.elapsed().as_secs_f64(), cpu(lab.server.id()) - before);
    let items = f64::from(ITEMS);
    println!(
        "{what}: {:.0} items/s, {:.1} µs of the server's CPU each",
        items / seconds,
        used.as_secs_f64() * 1e6 / items
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn rate_of_items_and_cpu_of_the_server() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let lease = Duration::from_secs(30);
    let head = lab.head_with_lease(lease).await;
    let (began, before) = (Instant::now(), cpu(lab.server.id()));
    put_all(&head, (0..ITEMS).map(data)).await;
    report("put in", &lab, began, before);
    let mut movers = Vec::new();
    for _ in 0..MOVERS {
        movers.push(Arc::new(lab.mover().await));
    }
    let (began, before) = (Instant::now(), cpu(lab.server.id()));
    let takers = movers.iter().flat_map(|mover| [mover, mover]).map(|mover| {
        let mover = Arc::clone(mover);
        tokio::spawn(async move {
            while let Some(taken) = mover.take().await.unwrap() {
                mover.done(taken).await.unwrap();
            }
        })
    });
    let takers: Vec<_> = takers.collect();
    while head.waiting().await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    report("taken and done", &lab, began, before);
    head.close().await.unwrap();
    for taker in takers {
        taker.await.unwrap();
    }
}
