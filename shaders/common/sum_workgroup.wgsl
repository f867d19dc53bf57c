// The sum over a workgroup of a power of two threads: a tree in workgroup memory. Every thread must call it.
var<workgroup> scratch: array<f32, WORKGROUP>;

fn sum_all(value: f32, thread: u32) -> f32 {
    scratch[thread] = value;
    workgroupBarrier();
    for (var half = WORKGROUP / 2u; half > 0u; half = half / 2u) {
        if (thread < half) {
            scratch[thread] += scratch[thread + half];
        }
        workgroupBarrier();
    }
    return scratch[0];
}
