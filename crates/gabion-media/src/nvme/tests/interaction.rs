//! What the two ends do together when nothing goes wrong, however the stream is cut.

use super::*;

#[test]
fn what_is_written_is_read_back_however_the_stream_is_cut() {
    for cuts in [Cuts::Whole, Cuts::OneByte, Cuts::seeded(1), Cuts::seeded(2), Cuts::seeded(3)] {
        let mut world = World::new(&cuts).ready();
        let lens: &[usize] = match cuts {
            Cuts::OneByte => &[4096, 20_480],
            _ => &[4096, 16_384, 20_480, 1 << 20],
        };
        for &len in lens {
            let data = pattern(len as u64, len);
            assert!(is_done(&world.write(8192, &data)));
            let read = world.read(8192, len);
            assert!(is_done(&read.outcome), "{:?}", read.outcome);
            assert!(read.buffer.unwrap()[..] == data[..]);
        }
        assert!(is_done(&world.one(OperationKind::Flush).outcome));
        assert_eq!(world.subsystem.in_flight(), 0);
        assert!(world.connections.iter().all(|c| c.data_reserved() == 0));
    }
}
