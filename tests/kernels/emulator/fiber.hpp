#pragma once
// Fibers: stacks that take turns on one OS thread.
#include <cstdint>

constexpr int STACK_BYTES = 64 << 10;

#ifdef __x86_64__
// Switches stacks without a system call: pushes the callee-saved registers, swaps stack pointers, pops them again.
extern "C" void switch_stack(void **from, void *to) asm("emulator_switch_stack");
asm(R"(
.text
.local emulator_switch_stack
.type emulator_switch_stack, @function
emulator_switch_stack:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
struct Context {
    void *top = nullptr;
    void begin(char *stack, void (*body)()) {  // `stack` is 16-byte aligned; `body` sees the alignment of a normal call
        char *at = stack + STACK_BYTES - 64;
        *(void (**)())at = body;
        top = at - 6 * 8;
    }
    void go(Context &to) { switch_stack(&top, to.top); }
};
#else
#include <ucontext.h>
struct Context {
    ucontext_t context;
    void begin(char *stack, void (*body)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack, context.uc_stack.ss_size = STACK_BYTES, context.uc_link = nullptr;
        makecontext(&context, body, 0);
    }
    void go(Context &to) { swapcontext(&context, &to.context); }
};
#endif
