//! State of this node for `kumi dsm show`.

use super::Job;
use crate::coherence::{Notable, PAGE_BYTES};
use crate::protocol::Updates;
use serde_json::{Value, json};

/// Pages of a kind that are listed for each region.
const LISTED: usize = 5;

/// Most cells of the map of a region.
const CELLS_MAX: usize = 1024;

/// Name of the member with this state in what Wind's node shows.
pub const MEMBER: &str = "shared_memory";

pub(super) fn state(job: &Job) -> Value {
    let regions = job.member.regions();
    let regions = regions.iter().map(|region| {
        let view = region.view();
        let (valid, homes) = region.pages_here(job.me);
        let list = |pages: Vec<Notable>| {
            let pages = pages.into_iter().map(|notable| {
                let address = view.address() + notable.page * PAGE_BYTES;
                let mut row = json!({"page": notable.page, "address": format!("{address:#x}"),
                                     "count": notable.count});
                if let Some(other) = notable.other {
                    row["with_node"] = other.into();
                }
                row
            });
            pages.collect::<Vec<_>>()
        };
        let heat = region.sharing().heat(CELLS_MAX);
        json!({
            "address": format!("{:#x}", view.address()),
            "bytes": view.pages() * PAGE_BYTES,
            "updated_at_barriers": region.updates() == Updates::AtBarriers,
            "valid_pages": valid,
            "home_pages": homes,
            "writes_found_by": view.tier().to_string(),
            "heat": {"pages_per_cell": heat.pages_per_cell, "misses": heat.misses,
                     "false_sharing": heat.false_sharing},
            "most_missed": list(region.sharing().hottest(LISTED)),
            "false_sharing": list(region.sharing().false_sharing(LISTED)),
        })
    });
    let counts = job.member.counts();
    json!({
        "node": job.me,
        "nodes": job.nodes,
        "left": job.member.left(),
        "replicas": u8::from(job.member.has_replicas()),
        "misses": counts.misses,
        "fetched_pages": counts.fetched_pages,
        "diffed_pages": counts.diffed_pages,
        "changed_bytes": counts.changed_bytes,
        "diff_bytes": counts.diff_bytes,
        "pushed_bytes": counts.pushed_bytes,
        "refreshed_pages": counts.refreshed_pages,
        "invalidated_pages": counts.invalidated_pages,
        "barriers": counts.barriers,
        "locks": counts.locks,
        "messages": counts.messages,
        "message_bytes": counts.message_bytes,
        "regions": regions.collect::<Vec<_>>(),
    })
}
