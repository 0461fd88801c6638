//! The bytes of PDUs, pinned. They are the protocol's, not ours: a change here is a defect.

use super::*;
use crate::nvme::command::{Completion as Entry, io};
use crate::nvme::fabrics::{ANY_CONTROLLER, ControllerInfo, IDENTIFY_LEN, capabilities};
use crate::nvme::pdu::{DataHeader, ReadyToTransfer};
use alloc::format;

const BOTH: Digests = Digests { header: true, data: true };

fn hex(bytes: &[u8]) -> String {
    let mut text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    // Long runs of zeros at the end of a structure say nothing.
    let zeros = bytes.iter().rev().take_while(|&&b| b == 0).count();
    if zeros > 8 {
        text.truncate((bytes.len() - zeros) * 2);
        text += &format!("+{zeros}*00");
    }
    text
}

fn wire(frame: &Frame) -> Vec<u8> {
    let bytes = frame.parts(0).concat();
    assert_eq!(bytes.len(), frame.len());
    bytes
}

fn assembly(digests: Digests) -> Assembly {
    Assembly { digests, alignment: 0 }
}

#[test]
fn the_request_and_response_that_initialize_a_connection() {
    let ask = Initialize { format: 0, alignment: 0, digests: BOTH, limit: 0 };
    let bytes = wire(&Assembly::initialize(PduKind::IcReq, &ask));
    assert_eq!((hex(&bytes), bytes.len()), ("000080008000000000000003+116*00".to_string(), 128));
    let answer = Initialize { limit: 1 << 20, ..ask };
    let bytes = wire(&Assembly::initialize(PduKind::IcResp, &answer));
    assert_eq!(hex(&bytes), "010080008000000000000003000010+113*00");
}

#[test]
fn the_connect_capsule_of_the_admin_queue() {
    let command = Submission::connect(&ConnectParameters {
        format: 0,
        queue: 0,
        entries_minus_one: 31,
        no_flow_control: true,
        keep_alive_ms: 5000,
    });
    let command = command.with_data(1024, true).with_cid(3);
    let data = ConnectData {
        host_id: [0xab; 16],
        controller: ANY_CONTROLLER,
        subsystem_nqn: "nqn.s".to_string(),
        host_nqn: "nqn.h".to_string(),
    };
    let frame = assembly(BOTH).command(&command, data.encode().freeze(), None);
    let bytes = wire(&frame);
    // Type, both digests, 72 bytes of header, data at 76, 1,104 bytes in all.
    assert_eq!(hex(&bytes[..8]), "0403484c50040000");
    assert_eq!(
        hex(&bytes[8..72]),
        "7f400300010000000000000000000000\
         00000000000000000000000000000000\
         0004000000000001000000001f000400\
         8813+14*00"
    );
    assert_eq!(hex(&bytes[76..94]), "abababababababababababababababab".to_string() + "ffff");
    assert_eq!(&bytes[76 + 256..76 + 262], b"nqn.s\0");
    assert_eq!(&bytes[76 + 512..76 + 518], b"nqn.h\0");
    assert_eq!(bytes[1100..], crc::crc32c(&bytes[76..1100]).to_le_bytes());
    assert_eq!(bytes[72..76], crc::crc32c(&bytes[..72]).to_le_bytes());
}

#[test]
fn a_write_capsule_with_and_without_its_data() {
    let command = Submission::transfer(io::WRITE, 0x1_0000_0002, 256).with_cid(0x0102);
    let frame = assembly(BOTH).command(&command.with_data(1 << 20, false), Bytes::new(), None);
    let bytes = wire(&frame);
    assert_eq!(
        hex(&bytes),
        "040148004c000000\
         01400201010000000000000000000000\
         00000000000000000000000000000000\
         000010000000005a0200000001000000\
         ff0000000000000000000000000000007378e71b"
    );
    let command = Submission::transfer(io::WRITE, 1, 1).with_cid(1).with_data(4096, true);
    let frame = assembly(Digests::default()).command(&command, vec![0x55; 4096].into(), None);
    let bytes = wire(&frame);
    assert_eq!(hex(&bytes[..8]), "0400484848100000");
    assert_eq!(hex(&bytes[32..48]), "00000000000000000010000000000001");
    assert_eq!(bytes.len(), 72 + 4096);
}

#[test]
fn the_request_for_data_and_the_data() {
    let r2t = ReadyToTransfer { cid: 0x0102, ttag: 7, offset: 0x1000, len: 0x2000 };
    let bytes = wire(&assembly(Digests::default()).r2t(&r2t));
    assert_eq!(hex(&bytes), "090018001800000002010700001000000020000000000000");
    let header =
        DataHeader { cid: 0x0102, ttag: 7, offset: 0x1000, len: 9, last: true, success: false };
    let data = Bytes::from_static(b"123456789");
    let bytes = wire(&assembly(BOTH).data(PduKind::H2cData, &header, data, None));
    // The last four bytes are the check value of CRC32C.
    assert_eq!(
        hex(&bytes),
        "0607181c29000000020107000010000009000000000000002233a3ea313233343536373839839206e3"
    );
}

#[test]
fn a_response_and_a_termination() {
    let entry = Entry { result: 1, queue_head: 2, queue: 3, cid: 4, status: Status::LBA_RANGE };
    let bytes = wire(&assembly(Digests::default()).response(&entry));
    assert_eq!(hex(&bytes), "050018001800000001000000000000000200030004000081");
    let fatal = crate::nvme::pdu::Fatal::field(0x1234, "test");
    let bytes = wire(&Assembly::term(PduKind::H2cTerm, &fatal, &[9; 8]));
    assert_eq!(
        hex(&bytes),
        "02001800200000000100341200000000000000000000".to_string() + "0000" + "0909090909090909"
    );
}

#[test]
fn padding_follows_the_peers_alignment_and_fits_every_one() {
    for alignment in 0..=31u8 {
        for digests in [BOTH, Digests::default()] {
            let command = Submission::new(io::WRITE).with_data(4096, true);
            let frame =
                Assembly { digests, alignment }.command(&command, vec![1; 4096].into(), None);
            let bytes = wire(&frame);
            let start = usize::from(bytes[3]);
            assert_eq!(start % ((usize::from(alignment) + 1) * 4), 0);
            assert_eq!(bytes[start..start + 4096], [1; 4096]);
        }
    }
}

#[test]
fn identify_controller_has_its_fields_where_linux_reads_them() {
    let info = ControllerInfo {
        controller: 5,
        transfer_order: 8,
        commands_max: 128,
        capsule_data_len: 16_384,
        capsule_data_offset: 0,
        write_cache: true,
        subsystem_nqn: SUBSYSTEM.to_string(),
    };
    let bytes = info.encode("serial");
    assert_eq!(bytes.len(), IDENTIFY_LEN);
    assert_eq!(ControllerInfo::decode(&bytes).unwrap(), info);
    let at = |at: usize, len: usize| hex(&bytes[at..at + len]);
    assert_eq!(at(77, 3), "080500"); // MDTS, CNTLID
    assert_eq!(at(80, 4), "00040100"); // version 1.4
    assert_eq!(at(320, 2), "0a00"); // keep-alive granularity: Linux insists
    assert_eq!(at(512, 4), "66448000"); // SQES, CQES, MAXCMD
    assert_eq!(at(516, 4), "01000000"); // NN
    assert_eq!(at(525, 1), "01"); // volatile write cache
    assert_eq!(at(536, 4), "01001000"); // SGLS: Linux insists on bit 0
    assert_eq!(at(1792, 4), "04040000"); // IOCCSZ: (64 + 16,384) / 16
    assert_eq!(at(1796, 4), "01000000"); // IORCSZ
    assert_eq!(capabilities(128), 0x20_0201_007f);
}
