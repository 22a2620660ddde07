//! Storage with high latency. Uses the zmove next to the lab's program.

use crate::{on_mount, zmove_and_mounts};

/// Requests for one file wait for storage concurrently, although the kernel serializes synchronous writes to a file on
/// such a mount and reads ahead only 128 KiB.
#[test]
fn parts_of_one_large_file_are_under_way_side_by_side() {
    let Some(zmove) = zmove_and_mounts() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..24_u32 << 18).flat_map(u32::to_le_bytes).collect();
    std::fs::write(home.path().join("file"), &bytes).unwrap();
    for (argument, operation) in [
        ("file $ZMOVE_LAB_LATE/", "write"),
        ("$ZMOVE_LAB_LATE/file back/", "read"),
    ] {
        let push = format!("{} push --direct on {argument}", zmove.display());
        std::fs::create_dir_all(home.path().join("over")).unwrap();
        let delays = ["--delay", "1", "--data-delay", "200"];
        let output = on_mount(home.path(), "over", &delays, &push);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let at_once = at_once(&said, operation);
        // A group of 4 MiB consists of four parts.
        assert!(
            at_once.is_some_and(|at_once| at_once > 4),
            "{operation}: {said}"
        );
    }
    assert!(std::fs::read(home.path().join("back/file")).unwrap() == bytes);
}

/// Returns the maximum number of concurrent requests of a kind.
fn at_once(said: &str, operation: &str) -> Option<u32> {
    let (_, counts) = said.rsplit_once(&format!(" {operation} "))?;
    let (_all, at_once) = counts.split_once(" (")?;
    at_once.split_once(' ')?.0.parse().ok()
}
