//! Memory that emptied collections keep.

use std::collections::BTreeMap;

/// Frees the node that a map keeps after its last entry was removed: room for eleven entries.
pub fn release<K, V>(map: &mut BTreeMap<K, V>) {
    if map.is_empty() {
        *map = BTreeMap::new();
    }
}
